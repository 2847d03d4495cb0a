// Any bytes from a client, cut anywhere: the same requests and the same refusal as uncut, nothing beyond the
// limits.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/request_reader.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

using namespace tandem::http;

constexpr RequestLimits kLimits{.request_line = 200, .head = 600, .body = 300};

constexpr std::string_view kSeeds[] = {
    "GET /a?b HTTP/1.1\r\nHost: x\r\n\r\nGET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    "3;a=\"b\"\r\nabc\r\n0\r\nT: u\r\n\r\n\r\nHEAD / HTTP/1.1\r\nhost: x\r\nConnection: close\r\n\r\n",
};

void require(bool condition) {
  if (!condition) std::abort();
}

struct Outcome {
  std::vector<HttpRequest> requests;
  int status = 0;
};

// `seed` says where the bytes are cut; 0: nowhere.
Outcome read(std::string_view bytes, uint32_t seed) {
  RequestReader reader(kLimits);
  Outcome out;
  while (true) {
    const auto step = reader.next();
    if (step == RequestReader::Step::kRequest) {
      out.requests.push_back(reader.take());
      const HttpRequest& request = out.requests.back();
      require(request.body.size() <= kLimits.body);
      require(request.path == "*" || request.path.starts_with('/'));
      for (const auto& [name, value] : request.headers) {
        require(!name.empty() && value.find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos);
      }
    } else if (step == RequestReader::Step::kRefused) {
      out.status = reader.refusal().status;
      require(out.status >= 400 && out.status < 500 && !reader.refusal().message.empty());
      require(reader.next() == RequestReader::Step::kRefused);
      return out;
    } else if (step == RequestReader::Step::kNeedMore) {
      if (bytes.empty()) return out;
      size_t n = bytes.size();
      if (seed != 0) {
        seed = seed * 1664525u + 1013904223u;
        n = 1 + (seed >> 16) % (seed % 3 == 0 ? 3 : 40);
      }
      reader.append(bytes.substr(0, n));
      bytes.remove_prefix(std::min(n, bytes.size()));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  uint32_t seed = 0;
  std::memcpy(&seed, data, 4);
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 4, size - 4);
  const Outcome whole = read(bytes, 0), cut = read(bytes, seed | 1);
  require(whole.status == cut.status && whole.requests.size() == cut.requests.size());
  for (size_t i = 0; i < whole.requests.size(); ++i) {
    const HttpRequest &a = whole.requests[i], &b = cut.requests[i];
    require(a.method == b.method && a.path == b.path && a.query == b.query && a.headers == b.headers &&
            a.body == b.body);
  }
  return 0;
}

// Starts from sound requests.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  if (size < 8) {
    const std::string_view start = kSeeds[seed % std::size(kSeeds)];
    if (max_size >= 4 + start.size()) {
      std::memcpy(data, &seed, 4);
      std::memcpy(data + 4, start.data(), start.size());
      size = 4 + start.size();
    }
  }
  return LLVMFuzzerMutate(data, size, max_size);
}
