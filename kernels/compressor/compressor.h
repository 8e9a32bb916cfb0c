// Compressed entries: every group of m neighbouring tokens of a document becomes one entry, pooled channel by channel with a
// softmax over the group's tokens. Tokens of an incomplete last group have no entry.
//   z[t] = gates[t] + ape[t mod m]                        (t counted inside the document)
//   without overlap (channels = d):    entry_i[c] = sum over t in group i of p[t, c] keys[t, c],  p = softmax over those t of z[t, c]
//   with overlap    (channels = 2 d):  the softmax runs over 2 m slots: tokens of group i - 1 with their channels [0, d) and
//                                      tokens of group i with their channels [d, 2 d); group 0 has the latter only
// Backward, of each slot: dkey = p dentry, dgate = p dentry (key - entry); dape[r] = sum of dgate over tokens with t mod m = r.
// Source: DeepSeek-V4 technical report, sections 2.3.1 and 2.3.2.
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct Compressor {
  Tensor keys, gates;  // f32 [T, channels]; rows may be strided
  Tensor ape;          // f32 [m, channels]
  Tensor first_token;  // i32 [E]  first token of each entry's group, among the rows here
  Tensor positions;    // i32 [E]  of that token in its document; 0: there is no previous group
  Tensor entries;      // [E, d]   overwritten; channels are d or 2 d; rows may be strided
  Stream stream;
};
void compressor(const Compressor&);

struct CompressorBackward {
  Tensor keys, gates, ape, first_token, positions;
  Tensor dentries;       // [E, d]
  Tensor dkeys, dgates;  // [T, channels]  overwritten; dtype of dentries; rows may be strided
  Tensor dape;           // f32 [m, channels]  accumulated into
  Tensor workspace;
  Stream stream;
};
void compressor_backward(const CompressorBackward&);
size_t compressor_backward_workspace_bytes(const CompressorBackward&);

}  // namespace hyscale
