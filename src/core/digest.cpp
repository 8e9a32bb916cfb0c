#include "core/digest.h"

#include <xxhash.h>

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <vector>

#include "core/file.h"

namespace hyscale {

struct Digest::State {
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> xxh3{XXH3_createState(), XXH3_freeState};
};

Digest::Digest() : state_(std::make_unique<State>()) { XXH3_64bits_reset(state_->xxh3.get()); }
Digest::~Digest() = default;
Digest::Digest(Digest&&) noexcept = default;
Digest& Digest::operator=(Digest&&) noexcept = default;

void Digest::add(const void* bytes, size_t count) { XXH3_64bits_update(state_->xxh3.get(), bytes, count); }

std::string Digest::text() const {
  std::ostringstream out;
  out << std::hex << std::setfill('0') << std::setw(16) << XXH3_64bits_digest(state_->xxh3.get());
  return out.str();
}

std::string file_digest(const std::string& path) {
  const File file = File::open_to_read(path);
  Digest digest;
  std::vector<char> block(size_t{4} << 20);
  const int64_t size = file.size();
  for (int64_t at = 0; at < size; at += static_cast<int64_t>(block.size())) {
    const size_t count = static_cast<size_t>(std::min<int64_t>(size - at, static_cast<int64_t>(block.size())));
    file.read_at(at, block.data(), count);
    digest.add(block.data(), count);
  }
  return digest.text();
}

}  // namespace hyscale
