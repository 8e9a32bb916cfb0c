// Gated residual streams: a token has n rows of C numbers; a layer reads one gated mean of them and writes to all.
//   read:   x[c] = 1/n sum over i of sigmoid(g[i, c]) r^[i, c]            (r^: the normalized streams, g: logits of the gates)
//   write:  R'[i, c] = R[i, c] + s[i] y[c],  s[i] = 2 sigmoid(u[i]);  without u every s is 1, without R it counts as 0
// Backward of read:  dr^ = sigmoid(g) dx / n,  dg = dx r^ sigmoid(g) (1 - sigmoid(g)) / n
// Backward of write: dy = sum_i s[i] dR'[i],  du[i] = (dR'[i] . y) s[i] (1 - s[i] / 2);  dR' itself goes on to R
// All tensors are contiguous. Source: Qwen3.8, report equations 30 to 34.
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct StreamsRead {
  Tensor normed;  // [T, n, C]
  Tensor gates;   // [T, n, C]: logits
  Tensor x;       // [T, C]
  Stream stream;
};
void streams_read(const StreamsRead&);

struct StreamsReadBackward {
  Tensor normed, gates;
  Tensor dx;       // [T, C]
  Tensor dnormed;  // [T, n, C], overwritten
  Tensor dgates;   // [T, n, C], overwritten
  Stream stream;
};
void streams_read_backward(const StreamsReadBackward&);

struct StreamsWrite {
  Tensor streams;  // [T, n, C], or absent
  Tensor logits;   // f32 [T, n]: u, or absent
  Tensor y;        // [T, C]
  Tensor out;      // [T, n, C]; may be the memory of streams
  Stream stream;
};
void streams_write(const StreamsWrite&);

struct StreamsWriteBackward {
  Tensor logits, y;  // as in forward; y may be absent where logits are
  Tensor dout;       // [T, n, C]
  Tensor dy;         // [T, C], overwritten
  Tensor dlogits;    // f32 [T, n], overwritten; absent with logits
  Stream stream;
};
void streams_write_backward(const StreamsWriteBackward&);

}  // namespace hyscale
