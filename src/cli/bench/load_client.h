// A load sent to an OpenAI endpoint, by one thread over plain sockets, so that the measure costs little
// beside what it measures.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/bench/load.h"

namespace tandem::bench {

struct Endpoint {
  std::string host;
  int port = 80;
  std::string prefix;  // of paths, before /v1: "" or "/some/path"
  std::string api_key;

  // "http://host:port", with or without /v1 behind it. Errors: https, and what is no address.
  static Result<Endpoint> parse(const std::string& url);
};

// What every request says besides its prompt.
struct RequestForm {
  std::string model;  // empty: left out
  bool stream = true;
};

class LoadClient {
 public:
  // Errors: the host is not known.
  static Result<std::unique_ptr<LoadClient>> create(const Endpoint& endpoint);
  ~LoadClient();

  struct Reply {
    int status = 0;
    std::string body;
    double seconds = 0;
  };
  // One request, awaited. body empty: GET. Errors: no connection, or an answer that breaks off.
  Result<Reply> call(const std::string& path, const std::string& body = {});

  // Sends the load and reads every answer. Connections stay open for the next load. Greedy, and end-of-text
  // tokens do not end an answer.
  LoadResult run(const Load& load, const RequestForm& form);

 private:
  class Exchange;
  explicit LoadClient(const Endpoint& endpoint) : endpoint_(endpoint) {}
  std::string head(const char* method, const std::string& path, size_t n_body) const;
  // A connection that lies idle, or a new one, which may still be connecting. Errors: the system's reason.
  Result<int> connection(bool& reused);

  const Endpoint endpoint_;
  std::string address_;  // sockaddr
  std::vector<int> idle_;
};

}  // namespace tandem::bench
