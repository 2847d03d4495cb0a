#include "serve/http/connection.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <exception>

#include "serve/http/answer.h"
#include "serve/http/loop.h"

namespace tandem::http {

namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kPipelined = size_t{64} << 10;     // read ahead of the running answer
constexpr size_t kReadTurn = size_t{256} << 10;     // of one client, before the others get their turn
constexpr size_t kWriteTurn = size_t{1} << 20;      // likewise
constexpr size_t kProgress = size_t{4} << 10;       // what must move in a time-out
constexpr std::chrono::milliseconds kLinger{2000};  // for the client to read why it is cut

void set_option(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof value); }

}  // namespace

Connection::Connection(Loop& loop, tcp::socket socket, tcp::endpoint remote)
    : loop_(loop),
      socket_(std::move(socket)),
      remote_(std::move(remote)),
      reader_(loop.options().limits),
      since_(Clock::now()) {}

void Connection::start() {
  const int fd = socket_.native_handle();
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // A peer that has lost power or its network says nothing: probes find out while we wait, the user time-out
  // while our bytes are unacknowledged.
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, int(loop_.options().write_timeout.count()));
  // The kernel keeps little that it has not sent, so that unsent() tells early.
  set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 128 << 10);
  wait_for_input();
}

void Connection::wait_for_input() {
  if (phase_ == Phase::kClosed || input_over_) return;
  if (phase_ == Phase::kAnswering && reader_.buffered() >= kPipelined) return wait_for_error();
  if (reading_) return;
  reading_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](const error_code& ec) {
    self->reading_ = false;
    if (!ec) self->readable();
  });
}

// While there is nothing to read, or no wish to: a reset is noticed all the same.
void Connection::wait_for_error() {
  if (phase_ == Phase::kClosed || watching_) return;
  watching_ = true;
  socket_.async_wait(tcp::socket::wait_error, [self = shared_from_this()](const error_code& ec) {
    self->watching_ = false;
    if (ec || self->phase_ == Phase::kClosed) return;
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(self->socket_.native_handle(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0 || self->input_over_) self->cut();
  });
}

void Connection::wait_for_room() {
  const auto now = Clock::now();
  if (!stuck_since_ || taken_ >= kProgress) {
    stuck_since_ = now;
    taken_ = 0;
  }
  if (writing_) return;
  writing_ = true;
  socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](const error_code& ec) {
    self->writing_ = false;
    if (!ec) self->flush();
  });
}

void Connection::readable() {
  if (phase_ == Phase::kClosed) return;
  auto& scratch = loop_.scratch();
  size_t total = 0;
  while (total < kReadTurn) {
    const ssize_t n = recv(socket_.native_handle(), scratch.data(), scratch.size(), MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      return cut();
    }
    if (n == 0) {
      input_over_ = true;
      break;
    }
    total += size_t(n);
    if (phase_ != Phase::kClosing) reader_.append({scratch.data(), size_t(n)});
    if (size_t(n) < scratch.size() || (phase_ == Phase::kAnswering && reader_.buffered() >= kPipelined))
      break;
  }
  progress_ += total;
  if (progress_ >= kProgress && phase_ == Phase::kReceiving && reader_.in_body()) {
    since_ = Clock::now();
    progress_ = 0;
  }
  process();
  if (input_over_) return end_of_input();
  wait_for_input();
}

void Connection::end_of_input() {
  switch (phase_) {
    case Phase::kIdle:
    case Phase::kReceiving:
      return close();
    case Phase::kClosing:
      // After our own shutdown this was the last thing to wait for.
      return out_.empty() ? close() : wait_for_error();
    case Phase::kAnswering:
      if (loop_.options().half_close_is_gone && reader_.buffered() == 0 && !answered()) return cut();
      return wait_for_error();
    case Phase::kClosed:
      return;
  }
}

// The handler has given all of it, sent or not: there is nothing to save by dropping it.
bool Connection::answered() const {
  const std::lock_guard lock(reply_->mutex);
  return reply_->ended;
}

void Connection::process() {
  while (phase_ == Phase::kIdle || phase_ == Phase::kReceiving) {
    switch (reader_.next()) {
      case RequestReader::Step::kNeedMore:
        if (phase_ == Phase::kIdle && !reader_.idle()) {
          phase_ = Phase::kReceiving;
          since_ = Clock::now();
          progress_ = 0;
        }
        if (reader_.in_body() && !body_begun_) {
          body_begun_ = true;
          since_ = Clock::now();
          progress_ = 0;
        }
        if (input_over_) close();
        return;
      case RequestReader::Step::kContinue:
        out_.append(std::string_view("HTTP/1.1 100 Continue\r\n\r\n"));
        flush();
        break;
      case RequestReader::Step::kRequest:
        return answer(reader_.take());
      case RequestReader::Step::kRefused:
        return refuse(reader_.refusal());
    }
  }
}

void Connection::answer(HttpRequest request) {
  phase_ = Phase::kAnswering;
  keep_alive_ = reader_.keep_alive();
  http_1_0_ = reader_.http_1_0();
  head_only_ = request.method == "HEAD";
  chunked_ = begun_ = delivered_ = body_begun_ = false;
  const std::string address = remote_.address().to_string();
  request.remote =
      fmt::format("{}:{}", remote_.address().is_v6() ? '[' + address + ']' : address, remote_.port());
  reply_ = std::make_shared<ReplyState>();
  reply_->mailbox = loop_.mailbox();
  reply_->max_unsent = 8 * loop_.options().output_buffer;
  reply_->connection = this;
  reply_->unsent = out_.size();
  auto reply = std::make_shared<Reply>(reply_);
  try {
    loop_.handler()(std::move(request), std::move(reply));
  } catch (const std::exception&) {  // the Reply, dropped without an answer, makes it a 500
  }
}

void Connection::refuse(const Refusal& refusal) {
  const std::string body = error_body(refusal.status, refusal.code, refusal.message);
  std::string head;
  append_head(head,
              {.status = refusal.status, .length = body.size(), .keep_alive = false, .date = loop_.date()},
              {{"Content-Type", "application/json"}});
  out_.append(head);
  out_.append(std::string_view(body));
  begin_closing();
}

void Connection::deliver() {
  if (phase_ != Phase::kAnswering) return;
  ReplyState& reply = *reply_;
  std::string& bytes = loop_.spare();
  bytes.clear();
  int status = 0;
  Headers headers;
  ReplyState::Form form;
  bool ended, abandoned;
  {
    const std::lock_guard lock(reply.mutex);
    reply.queued = false;
    bytes.swap(reply.pending);
    status = reply.status;
    if (!begun_) headers = std::move(reply.headers);
    form = reply.form;
    ended = reply.ended;
    abandoned = reply.abandoned;
  }
  const size_t before = out_.size();
  const size_t handed_over = bytes.size();
  if (!begun_) {
    begin_answer(status, headers, form, bytes);
    if (phase_ != Phase::kAnswering) return;
  } else if (!bytes.empty() && !head_only_) {
    append_chunk(bytes);
  }
  if (ended && !delivered_) {
    if (chunked_ && !head_only_) out_.append(std::string_view("0\r\n\r\n"));
    delivered_ = true;
  }
  // From bytes of the caller to bytes on the wire.
  reply.unsent.fetch_add(out_.size() - before - handed_over, std::memory_order_relaxed);
  if (bytes.capacity() > (size_t{256} << 10)) std::string().swap(bytes);
  flush();
  if (phase_ != Phase::kAnswering) return;
  const size_t unsent = reply.unsent.load(std::memory_order_relaxed);
  if (abandoned || (form == ReplyState::Form::kStream && unsent > reply.max_unsent)) cut();
}

void Connection::begin_answer(int status, const Headers& headers, ReplyState::Form form, std::string& body) {
  begun_ = true;
  if (loop_.draining()) keep_alive_ = false;
  const std::string_view refused = refused_header(headers);
  const bool sound = refused.empty() && status >= 200 && status <= 999;
  if (!sound) {
    // Not dropped silently, and not sent: whoever chose the bytes of that header may not choose what follows
    // it.
    const std::string text =
        error_body(500, "internal_error", fmt::format("the answer's header '{}' cannot be sent", refused));
    std::string head;
    append_head(head, {.status = 500, .length = text.size(), .keep_alive = false, .date = loop_.date()},
                {{"Content-Type", "application/json"}});
    out_.append(head);
    if (!head_only_) out_.append(std::string_view(text));
    close_reply(form == ReplyState::Form::kStream);
    return begin_closing();
  }
  AnswerHead head{.status = status, .http_1_0 = http_1_0_, .date = loop_.date()};
  const bool bare = status == 204 || status == 304;
  if (bare) {
    head.framing = Framing::kNone;
    head_only_ = true;
  } else if (form == ReplyState::Form::kWhole) {
    head.length = body.size();
  } else if (http_1_0_) {
    head.framing = Framing::kClose;
    keep_alive_ = false;
  } else {
    head.framing = Framing::kChunked;
    chunked_ = true;
  }
  head.keep_alive = keep_alive_;
  std::string& tail = out_.tail();
  const size_t before = tail.size();
  append_head(tail, head, headers);
  out_.added(tail.size() - before);
  if (head_only_ || body.empty()) return;
  if (form == ReplyState::Form::kWhole) {
    out_.append(std::move(body));
    body.clear();
  } else {
    append_chunk(body);
  }
}

void Connection::append_chunk(std::string_view bytes) {
  std::string& tail = out_.tail();
  const size_t before = tail.size();
  if (chunked_) {
    char size[20];
    char* first = std::end(size);
    *--first = '\n';
    *--first = '\r';
    for (size_t n = bytes.size(); n > 0; n >>= 4) *--first = "0123456789abcdef"[n & 15];
    tail.append(first, size_t(std::end(size) - first));
  }
  tail.append(bytes);
  if (chunked_) tail.append("\r\n");
  out_.added(tail.size() - before);
}

void Connection::flush() {
  if (phase_ == Phase::kClosed || writing_) return;
  size_t turn = 0;
  while (!out_.empty()) {
    if (turn >= kWriteTurn) return wait_for_room();
    iovec pieces[16];
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = out_.pieces(pieces);
    const ssize_t n = sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return wait_for_room();
      return cut();
    }
    turn += size_t(n);
    taken_ += size_t(n);
    out_.consume(size_t(n));
    if (reply_) reply_->unsent.fetch_sub(size_t(n), std::memory_order_relaxed);
  }
  stuck_since_.reset();
  taken_ = 0;
  all_taken();
}

void Connection::all_taken() {
  if (phase_ == Phase::kAnswering && delivered_) {
    finish_answer();
  } else if (phase_ == Phase::kClosing && !shut_) {
    shut_ = true;
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    since_ = Clock::now();
    if (input_over_) close();
  }
}

void Connection::finish_answer() {
  close_reply(false);
  out_.release();
  if (!keep_alive_ || loop_.draining()) return begin_closing();
  phase_ = Phase::kIdle;
  since_ = Clock::now();
  process();
  if (phase_ != Phase::kClosed) wait_for_input();
}

// The client must see the last bytes: a socket that is closed with unread input resets the connection, which
// may throw them away. So our side is shut first, and the client's bytes are read and dropped for a while.
void Connection::begin_closing() {
  phase_ = Phase::kClosing;
  since_ = Clock::now();
  if (!writing_) flush();
  wait_for_input();
}

void Connection::tick(Clock::time_point now) {
  const ServerOptions& options = loop_.options();
  if (stuck_since_ && now - *stuck_since_ > options.write_timeout) return cut();
  switch (phase_) {
    case Phase::kIdle:
      if (now - since_ > options.idle_timeout) close();
      return;
    case Phase::kReceiving:
      if (now - since_ > options.read_timeout) {
        refuse({408, "request_timeout",
                fmt::format("the {} made no progress for {} ms", reader_.in_body() ? "body" : "head",
                            options.read_timeout.count())});
      }
      return;
    case Phase::kAnswering:
      if (chunked_ && reply_->unsent.load(std::memory_order_relaxed) > options.output_buffer) {
        if (!over_since_) over_since_ = now;
        if (now - *over_since_ > options.write_timeout) cut();
      } else {
        over_since_.reset();
      }
      return;
    case Phase::kClosing:
      if (shut_ && now - since_ > kLinger) close();
      return;
    case Phase::kClosed:
      return;
  }
}

void Connection::cut() {
  if (phase_ == Phase::kClosed) return;
  close();
}

void Connection::close() {
  if (phase_ == Phase::kClosed) return;
  const auto self = shared_from_this();
  phase_ = Phase::kClosed;
  error_code ignored;
  socket_.close(ignored);
  out_ = {};
  close_reply(true);
  loop_.forget(*this);  // last: drain() may return at once
}

void Connection::close_reply(bool gone) {
  if (!reply_) return;
  const auto reply = std::move(reply_);
  reply_.reset();
  over_since_.reset();
  std::function<void()> callback;
  std::string pending;
  {
    const std::lock_guard lock(reply->mutex);
    reply->closed.store(true, std::memory_order_release);
    reply->connection = nullptr;
    reply->gone = gone;
    reply->on_gone.swap(callback);
    reply->pending.swap(pending);
    reply->unsent.store(0, std::memory_order_relaxed);
  }
  if (gone && callback) callback();
}

}  // namespace tandem::http
