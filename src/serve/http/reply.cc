#include "serve/http/reply.h"

#include <boost/asio/post.hpp>

#include "base/check.h"
#include "serve/http/answer.h"
#include "serve/http/mailbox.h"

namespace tandem::http {

void Mailbox::push(std::shared_ptr<ReplyState> reply) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    full_.push_back(std::move(reply));
    if (woken_ || holds_ > 0) return;
    woken_ = true;
  }
  wake();
}

void Mailbox::take(std::vector<std::shared_ptr<ReplyState>>& into) {
  const std::lock_guard lock(mutex_);
  full_.swap(into);
  woken_ = false;
}

void Mailbox::hold() {
  const std::lock_guard lock(mutex_);
  ++holds_;
}

void Mailbox::release() {
  {
    const std::lock_guard lock(mutex_);
    if (--holds_ > 0 || full_.empty() || woken_ || closed_) return;
    woken_ = true;
  }
  wake();
}

void Mailbox::close() {
  std::vector<std::shared_ptr<ReplyState>> dropped;
  const std::lock_guard lock(mutex_);
  closed_ = true;
  full_.swap(dropped);
}

void Mailbox::wake() {
  boost::asio::post(io_, [this] { deliver_(); });
}

namespace {

// Queues the reply unless it is; call with the state's mutex held, then push() without it.
bool needs_push(ReplyState& state) { return !std::exchange(state.queued, true); }

}  // namespace

Reply::Reply(std::shared_ptr<ReplyState> state) : state_(std::move(state)) {}

Reply::~Reply() {
  ReplyState& state = *state_;
  if (state.closed.load(std::memory_order_acquire)) return;
  bool push = false;
  {
    const std::lock_guard lock(state.mutex);
    if (state.ended || state.closed) return;
    if (state.form == ReplyState::Form::kNone) {
      state.form = ReplyState::Form::kWhole;
      state.status = 500;
      state.headers = {{"Content-Type", "application/json"}};
      state.pending = error_body(500, "internal_error", "the request was dropped without an answer");
      state.unsent.fetch_add(state.pending.size(), std::memory_order_relaxed);
      state.ended = true;
    } else {
      state.abandoned = true;
    }
    push = needs_push(state);
  }
  if (push) state.mailbox->push(state_);
}

void Reply::send(int status, Headers headers, std::string body) {
  ReplyState& state = *state_;
  if (state.closed.load(std::memory_order_acquire)) return;
  bool push = false;
  {
    const std::lock_guard lock(state.mutex);
    if (state.closed) return;
    TD_CHECK(state.form == ReplyState::Form::kNone, "an answer is sent twice (status %d)\n", status);
    state.form = ReplyState::Form::kWhole;
    state.status = status;
    state.headers = std::move(headers);
    state.unsent.fetch_add(body.size(), std::memory_order_relaxed);
    state.pending = std::move(body);
    state.ended = true;
    push = needs_push(state);
  }
  if (push) state.mailbox->push(state_);
}

void Reply::begin_stream(int status, Headers headers) {
  ReplyState& state = *state_;
  if (state.closed.load(std::memory_order_acquire)) return;
  bool push = false;
  {
    const std::lock_guard lock(state.mutex);
    if (state.closed) return;
    TD_CHECK(state.form == ReplyState::Form::kNone, "a stream begins after an answer (status %d)\n", status);
    state.form = ReplyState::Form::kStream;
    state.status = status;
    state.headers = std::move(headers);
    push = needs_push(state);
  }
  if (push) state.mailbox->push(state_);
}

void Reply::write(std::string_view bytes) {
  ReplyState& state = *state_;
  if (bytes.empty() || state.closed.load(std::memory_order_acquire)) return;
  bool push = false;
  {
    const std::lock_guard lock(state.mutex);
    if (state.closed) return;
    TD_CHECK(state.form == ReplyState::Form::kStream && !state.ended, "%zu bytes written to no stream\n",
             bytes.size());
    // Past all patience: the server's thread cuts the client, memory stops growing now.
    if (state.unsent.load(std::memory_order_relaxed) <= state.max_unsent) {
      state.pending.append(bytes);
      state.unsent.fetch_add(bytes.size(), std::memory_order_relaxed);
    }
    push = needs_push(state);
  }
  if (push) state.mailbox->push(state_);
}

void Reply::end() {
  ReplyState& state = *state_;
  if (state.closed.load(std::memory_order_acquire)) return;
  bool push = false;
  {
    const std::lock_guard lock(state.mutex);
    if (state.closed) return;
    TD_CHECK(state.form == ReplyState::Form::kStream && !state.ended, "end() of no stream%s\n", "");
    state.ended = true;
    push = needs_push(state);
  }
  if (push) state.mailbox->push(state_);
}

size_t Reply::unsent() const { return state_->unsent.load(std::memory_order_relaxed); }

void Reply::on_gone(std::function<void()> callback) {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->gone) {
      if (!state_->closed) state_->on_gone.swap(callback);
      return;
    }
  }
  if (callback) callback();
}

bool Reply::gone() const {
  const std::lock_guard lock(state_->mutex);
  return state_->gone;
}

}  // namespace tandem::http
