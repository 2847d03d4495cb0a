// One client: requests in, answers out, in order. Everything on the server's thread. Includes Asio: for .cc
// files of serve/http only.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "serve/http/mailbox.h"
#include "serve/http/output.h"
#include "serve/http/request_reader.h"

namespace tandem::http {

class Loop;
using Clock = std::chrono::steady_clock;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Loop& loop, boost::asio::ip::tcp::socket socket, boost::asio::ip::tcp::endpoint remote);

  void start();
  // Takes over what the running answer has got since the last call.
  void deliver();
  // Looks at the time-outs.
  void tick(Clock::time_point now);
  // Closes now; a running answer's client counts as gone.
  void cut();

  // Between requests, everything answered: may be closed without harm.
  bool idle() const { return phase_ == Phase::kIdle && reader_.idle() && out_.empty(); }
  Clock::time_point idle_since() const { return since_; }
  bool answering() const { return phase_ == Phase::kAnswering; }

 private:
  enum class Phase {
    kIdle,       // not one byte of a request
    kReceiving,  // some, not all
    kAnswering,  // the handler has it
    kClosing,    // the last bytes leave, what still comes is thrown away
    kClosed,
  };

  void readable();
  void end_of_input();
  bool answered() const;
  void process();
  void answer(HttpRequest request);
  void refuse(const Refusal& refusal);
  void begin_answer(int status, const Headers& headers, ReplyState::Form form, std::string& body);
  void append_chunk(std::string_view bytes);
  void finish_answer();
  void flush();
  void all_taken();
  void begin_closing();
  void wait_for_input();
  void wait_for_error();
  void wait_for_room();
  void close();
  void close_reply(bool gone);

  Loop& loop_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::ip::tcp::endpoint remote_;
  RequestReader reader_;
  Output out_;
  std::shared_ptr<ReplyState> reply_;

  Phase phase_ = Phase::kIdle;
  bool reading_ = false, writing_ = false, watching_ = false;  // an async_wait is pending
  bool body_begun_ = false;  // of the request that arrives: its head is complete
  bool input_over_ = false;  // the client has closed its sending side
  bool shut_ = false;        // we have closed ours
  // Of the running answer.
  bool keep_alive_ = false, http_1_0_ = false, head_only_ = false, chunked_ = false;
  bool begun_ = false, delivered_ = false;  // its head, its last byte is in out_

  Clock::time_point
      since_;            // in this phase; while receiving or writing: since the last progress worth the name
  size_t progress_ = 0;  // bytes received since then
  std::optional<Clock::time_point> stuck_since_;  // the kernel takes nothing
  size_t taken_ = 0;                              // bytes it has taken since then
  std::optional<Clock::time_point> over_since_;   // the stream is beyond output_buffer
};

}  // namespace tandem::http
