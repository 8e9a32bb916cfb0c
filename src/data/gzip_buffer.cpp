#include "data/gzip_buffer.h"

#include <isa-l/igzip_lib.h>

#include <algorithm>

#include "core/error.h"

namespace hyscale {
namespace {

constexpr size_t kPackedBytes = size_t{1} << 18, kTextBytes = size_t{1} << 20;

}  // namespace

GzipBuffer::GzipBuffer(const std::string& path) : file_(File::open_to_read(path)), packed_(kPackedBytes), text_(kTextBytes), state_(std::make_unique<inflate_state>()) {
  isal_inflate_init(state_.get());
  state_->crc_flag = ISAL_GZIP;
}

GzipBuffer::~GzipBuffer() = default;

bool GzipBuffer::read_more() {
  const int64_t count = std::min(static_cast<int64_t>(packed_.size()), file_.size() - offset_);
  if (count <= 0) return false;
  file_.read_at(offset_, packed_.data(), static_cast<size_t>(count));
  offset_ += count;
  state_->next_in = reinterpret_cast<uint8_t*>(packed_.data());
  state_->avail_in = static_cast<uint32_t>(count);
  return true;
}

std::streambuf::int_type GzipBuffer::underflow() {
  inflate_state& s = *state_;
  s.next_out = reinterpret_cast<uint8_t*>(text_.data());
  s.avail_out = static_cast<uint32_t>(text_.size());
  while (s.avail_out == text_.size()) {
    if (s.avail_in == 0 && !read_more()) {
      if (s.block_state == ISAL_BLOCK_FINISH) return traits_type::eof();
      throw UserError(file_.path() + ": is cut off, or empty: gzip's end is missing");
    }
    if (s.block_state == ISAL_BLOCK_FINISH) isal_inflate_reset(&s);
    if (const int error = isal_inflate(&s); error < 0) throw UserError(concat(file_.path(), ": is no valid gzip file before byte ", offset_ - s.avail_in));
  }
  setg(text_.data(), text_.data(), text_.data() + (text_.size() - s.avail_out));
  return traits_type::to_int_type(*gptr());
}

}  // namespace hyscale
