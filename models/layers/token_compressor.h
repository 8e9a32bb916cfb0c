// Compressed entries of a sequence (kernels/compressor), normalised and turned to the position of their first token:
//   entries = rope(RMSNorm(pool(W_kv u, W_gate u + ape)))      rope on the LAST rope_dim numbers
// Overlapping groups (ratio 4) have twice the channels. Source: DeepSeek-V4 technical report, section 2.3.
#pragma once
#include "models/context.h"
#include "models/parameter_store.h"

namespace hyscale {

struct CompressorConfig {
  int64_t hidden_size = 0, dims = 0, rope_dim = 0, ratio = 4;
  bool overlap = true;
  float eps = 1e-6f;
  int64_t channels() const { return overlap ? 2 * dims : dims; }
};

class TokenCompressor {
 public:
  // Hugging Face names: prefix + wkv.weight, wgate.weight [channels, C], ape [ratio, channels], norm.weight [dims].
  TokenCompressor(ParameterStore&, const std::string& prefix, const CompressorConfig&, ParameterGroup);

  struct Saved {
    Tensor u;             // [X, C], the caller's: rows of the reach (TokenReach)
    Tensor keys_gates;    // f32 [X, 2 channels]
    Tensor pooled, rstd;  // [E, dims], f32 [E]
  };
  // entries [E, dims]: the own ones
  void forward(Context&, const Tensor& u, const CompressedEntries&, const Tensor& inv_freq, const Tensor& entries, Saved&);
  // dentries is used up. du [X, C] is added to where it is defined; the parameters get theirs in any case.
  void backward(Context&, const Tensor& dentries, const CompressedEntries&, const Tensor& inv_freq, const Tensor& du, const Saved&);

 private:
  void rotate(Context&, const Tensor& entries, const CompressedEntries&, const Tensor& inv_freq, bool inverse) const;

  CompressorConfig config_;
  Parameter &keys_gates_, &ape_, &norm_;
};

}  // namespace hyscale
