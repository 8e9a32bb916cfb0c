// One head of one document at a time, chunk by chunk; a chunk is small matrix products and a triangular solve, in f64: the state
// sums over a whole document.
#include "kernels/gated_delta/gated_delta_ref.h"

#include <omp.h>

#include <algorithm>
#include <cmath>

#include "kernels/common/matrix_product.h"
#include "kernels/common/op.h"

namespace hyscale {
namespace {

// Rows of one head of [T, H, D], from token `first` on.
struct HeadRows {
  float* data;
  int64_t step;
  HeadRows(const Tensor& x, int64_t first, int64_t head) : data(x.f32() + first * x.stride(0) + head * x.stride(1)), step(x.stride(0)) {}
  float* operator[](int64_t i) const { return data + i * step; }
};

double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

struct Sizes {
  int64_t tokens, documents, key_heads, value_heads, dk, dv, chunk;
  Sizes(const Tensor& k, const Tensor& v, int64_t num_documents, int64_t most_in_chunk)
      : tokens(k.size(0)), documents(num_documents), key_heads(k.size(1)), value_heads(v.size(1)), dk(k.size(2)), dv(v.size(2)),
        chunk(std::min(most_in_chunk, std::max<int64_t>(1, k.size(0)))) {}
  template <typename Op>
  explicit Sizes(const Op& g) : Sizes(g.k, g.v, g.document_starts.size(0) - 1, g.chunk) {}
  int64_t group() const { return value_heads / key_heads; }
  int64_t chunks_of(int64_t n) const { return (n + chunk - 1) / chunk; }
  int64_t most_chunks() const { return chunks_of(tokens); }
};

// For work that keeps no states of earlier chunks.
Sizes one_chunk(Sizes n) {
  n.tokens = n.chunk;
  return n;
}

// What one thread needs for a chunk. Matrices are [C, C], [C, Dk] or [C, Dv].
struct ChunkMemory {
  double *q, *k, *v;
  double *decay, *a, *attention;  // D (lower), A (strictly lower), lower(Q K^T D)
  double *u, *w, *sums, *gamma, *beta, *state;
};

ChunkMemory take_chunk(Workspace& w, const Sizes& n) {
  const int64_t c = n.chunk;
  ChunkMemory m{};
  for (double** p : {&m.q, &m.k, &m.w}) *p = w.take<double>(c * n.dk);
  for (double** p : {&m.v, &m.u}) *p = w.take<double>(c * n.dv);
  for (double** p : {&m.decay, &m.a, &m.attention}) *p = w.take<double>(c * c);
  for (double** p : {&m.sums, &m.gamma, &m.beta}) *p = w.take<double>(c);
  m.state = w.take<double>(n.dk * n.dv);
  return m;
}

size_t doubles(int64_t n) { return aligned_bytes(static_cast<size_t>(n) * sizeof(double)); }
size_t chunk_bytes(const Sizes& n) {
  return 3 * doubles(n.chunk * n.dk) + 2 * doubles(n.chunk * n.dv) + 3 * doubles(n.chunk * n.chunk) + 3 * doubles(n.chunk) + doubles(n.dk * n.dv);
}

void gather(const HeadRows& from, int64_t rows, int64_t dims, double* to) {
  for (int64_t i = 0; i < rows; ++i) std::copy_n(from[i], dims, to + i * dims);
}

// x <- (I + A)^-1 x, or its transpose's; x [rows, columns].
void solve(const double* a, int64_t rows, int64_t a_step, double* x, int64_t columns, bool transposed) {
  for (int64_t n = 0; n < rows; ++n) {
    const int64_t i = transposed ? rows - 1 - n : n, begin = transposed ? i + 1 : 0, end = transposed ? rows : i;
    for (int64_t j = begin; j < end; ++j) {
      const double factor = transposed ? a[j * a_step + i] : a[i * a_step + j];
#pragma omp simd
      for (int64_t c = 0; c < columns; ++c) x[i * columns + c] -= factor * x[j * columns + c];
    }
  }
}

// A chunk of `rows` tokens of one value head.
struct Chunk {
  int64_t rows, first, head;
};

// Decays, A and W.
template <typename Op>
void prepare_keys(const Op& g, const Sizes& n, const Chunk& c, const ChunkMemory& m) {
  gather(HeadRows(g.k, c.first, c.head / n.group()), c.rows, n.dk, m.k);
  double sum = 0;
  for (int64_t i = 0; i < c.rows; ++i) {
    sum += g.log_decay.f32()[(c.first + i) * n.value_heads + c.head];
    m.sums[i] = sum;
    m.gamma[i] = std::exp(m.sums[i]);
    m.beta[i] = g.beta.f32()[(c.first + i) * n.value_heads + c.head];
  }
  matrix_product(c.rows, c.rows, n.dk, 1, Rows(m.k, n.dk), transpose(m.k, n.dk), 0, m.a, n.chunk);
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t j = 0; j < c.rows; ++j) {
      const int64_t at = i * n.chunk + j;
      m.decay[at] = j <= i ? std::exp(m.sums[i] - m.sums[j]) : 0;
      m.a[at] = j < i ? m.beta[i] * m.a[at] * m.decay[at] : 0;
    }
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t d = 0; d < n.dk; ++d) m.w[i * n.dk + d] = m.beta[i] * m.gamma[i] * m.k[i * n.dk + d];
  solve(m.a, c.rows, n.chunk, m.w, n.dk, false);
}

// U, behind prepare_keys.
template <typename Op>
void prepare_values(const Op& g, const Sizes& n, const Chunk& c, const ChunkMemory& m) {
  gather(HeadRows(g.v, c.first, c.head), c.rows, n.dv, m.v);
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t d = 0; d < n.dv; ++d) m.u[i * n.dv + d] = m.beta[i] * m.v[i * n.dv + d];
  solve(m.a, c.rows, n.chunk, m.u, n.dv, false);
}

// Attention, behind prepare_keys.
template <typename Op>
void prepare_queries(const Op& g, const Sizes& n, const Chunk& c, const ChunkMemory& m) {
  gather(HeadRows(g.q, c.first, c.head / n.group()), c.rows, n.dk, m.q);
  matrix_product(c.rows, c.rows, n.dk, 1, Rows(m.q, n.dk), transpose(m.k, n.dk), 0, m.attention, n.chunk);
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t j = 0; j < c.rows; ++j) m.attention[i * n.chunk + j] = j <= i ? m.attention[i * n.chunk + j] * m.decay[i * n.chunk + j] : 0;
}

// Everything of a chunk that does not depend on the state.
template <typename Op>
void prepare(const Op& g, const Sizes& n, const Chunk& c, const ChunkMemory& m) {
  prepare_keys(g, n, c, m);
  prepare_values(g, n, c, m);
  prepare_queries(g, n, c, m);
}

// A document's carried state of one head, or zeros.
void load_state(const CarriedStates& carried, const Sizes& n, int64_t document, int64_t head, double* state) {
  const int64_t size = n.dk * n.dv, from = carried.states.defined() ? carried.of_document.i32()[document] : -1;
  if (from < 0)
    std::fill_n(state, size, 0.0);
  else
    std::copy_n(carried.states.f32() + (from * n.value_heads + head) * size, size, state);
}

// U becomes V' = U - W S.
void apply_state(const Sizes& n, const Chunk& c, const ChunkMemory& m) { matrix_product(c.rows, n.dv, n.dk, -1, Rows(m.w, n.dk), Rows(m.state, n.dv), 1, m.u, n.dv); }

// S <- g_last S + K^T diag(r) V'; the rows of V' are scaled in place.
void advance_state(const Sizes& n, const Chunk& c, const ChunkMemory& m) {
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t d = 0; d < n.dv; ++d) m.u[i * n.dv + d] *= m.decay[(c.rows - 1) * n.chunk + i];
  matrix_product(n.dk, n.dv, c.rows, 1, transpose(m.k, n.dk), Rows(m.u, n.dv), m.gamma[c.rows - 1], m.state, n.dv);
}

// M <- (g_last I - K^T diag(r) W) M, behind advance_state; read [C, Dk] is scratch.
void advance_map(const Sizes& n, const Chunk& c, const ChunkMemory& m, double* map, double* read) {
  matrix_product(c.rows, n.dk, n.dk, -1, Rows(m.w, n.dk), Rows(map, n.dk), 0, read, n.dk);
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t d = 0; d < n.dk; ++d) read[i * n.dk + d] *= m.decay[(c.rows - 1) * n.chunk + i];
  matrix_product(n.dk, n.dk, c.rows, 1, transpose(m.k, n.dk), Rows(read, n.dk), m.gamma[c.rows - 1], map, n.dk);
}
size_t map_bytes(const Sizes& n) { return chunk_bytes(n) + doubles(n.dk * n.dk) + doubles(n.chunk * n.dk); }

// out [C, Dv] is scratch.
void forward_chunk(const GatedDelta& g, const Sizes& n, const Chunk& c, const ChunkMemory& m, double* out) {
  prepare(g, n, c, m);
  apply_state(n, c, m);
  matrix_product(c.rows, n.dv, n.dk, g.scale, Rows(m.q, n.dk), Rows(m.state, n.dv), 0, out, n.dv);
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t d = 0; d < n.dv; ++d) out[i * n.dv + d] *= m.gamma[i];
  matrix_product(c.rows, n.dv, c.rows, g.scale, Rows(m.attention, n.chunk), Rows(m.u, n.dv), 1, out, n.dv);
  const HeadRows o(g.o, c.first, c.head);
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t d = 0; d < n.dv; ++d) o[i][d] = static_cast<float>(out[i * n.dv + d]);
  advance_state(n, c, m);
}
size_t forward_bytes(const Sizes& n) { return chunk_bytes(n) + doubles(n.chunk * n.dv); }

// What backward needs beyond a chunk's forward.
struct BackwardMemory {
  ChunkMemory chunk;
  double* states;                             // at the starts of a document's chunks
  double *dstate, *next;                      // dS of what follows the chunk, and of its start
  double *dout, *dvalues, *y, *scaled_dout;   // [C, Dv]: dO, dV', T^T dU, diag(g) dO
  double *x, *dq, *dk, *dk_state, *fk, *scaled_k;  // [C, Dk]: T^T dW, dQ, dK, its part by the state, F K, diag(beta) K
  double *e, *f;                              // [C, C]
  double* dsums;                              // gradient of G
};

BackwardMemory take_backward(Workspace& w, const Sizes& n) {
  BackwardMemory m{};
  m.chunk = take_chunk(w, n);
  m.states = w.take<double>(n.most_chunks() * n.dk * n.dv);
  for (double** p : {&m.dstate, &m.next}) *p = w.take<double>(n.dk * n.dv);
  for (double** p : {&m.dout, &m.dvalues, &m.y, &m.scaled_dout}) *p = w.take<double>(n.chunk * n.dv);
  for (double** p : {&m.x, &m.dq, &m.dk, &m.dk_state, &m.fk, &m.scaled_k}) *p = w.take<double>(n.chunk * n.dk);
  for (double** p : {&m.e, &m.f}) *p = w.take<double>(n.chunk * n.chunk);
  m.dsums = w.take<double>(n.chunk);
  return m;
}
size_t backward_bytes(const Sizes& n) {
  return chunk_bytes(n) + doubles(n.most_chunks() * n.dk * n.dv) + 2 * doubles(n.dk * n.dv) + 4 * doubles(n.chunk * n.dv) + 6 * doubles(n.chunk * n.dk) +
         2 * doubles(n.chunk * n.chunk) + doubles(n.chunk);
}

// dV', and dS of the chunk's start.
template <typename Op>
void backward_state(const Op& g, const Sizes& n, const Chunk& c, const BackwardMemory& m) {
  const ChunkMemory& f = m.chunk;
  gather(HeadRows(g.dout, c.first, c.head), c.rows, n.dv, m.dout);
  matrix_product(c.rows, n.dv, n.dk, 1, Rows(f.k, n.dk), Rows(m.dstate, n.dv), 0, m.dvalues, n.dv);
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t d = 0; d < n.dv; ++d) {
      m.dvalues[i * n.dv + d] *= f.decay[(c.rows - 1) * n.chunk + i];
      m.scaled_dout[i * n.dv + d] = f.gamma[i] * m.dout[i * n.dv + d];
    }
  matrix_product(c.rows, n.dv, c.rows, g.scale, transpose(f.attention, n.chunk), Rows(m.dout, n.dv), 1, m.dvalues, n.dv);
  std::copy_n(m.dstate, n.dk * n.dv, m.next);
  matrix_product(n.dk, n.dv, c.rows, g.scale, transpose(f.q, n.dk), Rows(m.scaled_dout, n.dv), f.gamma[c.rows - 1], m.next, n.dv);
  matrix_product(n.dk, n.dv, c.rows, -1, transpose(f.w, n.dk), Rows(m.dvalues, n.dv), 1, m.next, n.dv);
}

// E = scale lower(dO V'^T) D; X, Y; then F = dA D, and dsums from Z = E (Q K^T) and H = dA A. f.u holds V' and becomes U.
void backward_inside(const GatedDeltaBackward& g, const Sizes& n, const Chunk& c, const BackwardMemory& m) {
  const ChunkMemory& f = m.chunk;
  std::fill_n(m.dsums, c.rows, 0.0);
  matrix_product(c.rows, c.rows, n.dv, g.scale, Rows(m.dout, n.dv), transpose(f.u, n.dv), 0, m.e, n.chunk);
  matrix_product(c.rows, n.dk, n.dv, g.scale, Rows(m.scaled_dout, n.dv), transpose(f.state, n.dv), 0, m.dq, n.dk);
  matrix_product(c.rows, n.dk, n.dv, 1, Rows(f.u, n.dv), transpose(m.dstate, n.dv), 0, m.dk_state, n.dk);
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t d = 0; d < n.dk; ++d) m.dk_state[i * n.dk + d] *= f.decay[(c.rows - 1) * n.chunk + i];
  matrix_product(c.rows, n.dv, n.dk, 1, Rows(f.w, n.dk), Rows(f.state, n.dv), 1, f.u, n.dv);
  matrix_product(c.rows, n.dk, n.dv, -1, Rows(m.dvalues, n.dv), transpose(f.state, n.dv), 0, m.x, n.dk);
  std::copy_n(m.dvalues, c.rows * n.dv, m.y);
  solve(f.a, c.rows, n.chunk, m.x, n.dk, true);
  solve(f.a, c.rows, n.chunk, m.y, n.dv, true);
  matrix_product(c.rows, c.rows, n.dk, -1, Rows(m.x, n.dk), transpose(f.w, n.dk), 0, m.f, n.chunk);
  matrix_product(c.rows, c.rows, n.dv, -1, Rows(m.y, n.dv), transpose(f.u, n.dv), 1, m.f, n.chunk);
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t j = 0; j < c.rows; ++j) {
      const int64_t at = i * n.chunk + j;
      // The attention already carries D, so E (Q K^T) is its product with the undecayed E.
      const double moved = (j <= i ? m.e[at] * f.attention[at] : 0) + (j < i ? m.f[at] * f.a[at] : 0);
      m.dsums[i] += moved;
      m.dsums[j] -= moved;
      m.e[at] = j <= i ? m.e[at] * f.decay[at] : 0;
      m.f[at] = j < i ? m.f[at] * f.decay[at] : 0;
    }
}

// Gradients of the chunk's inputs. dq and dk are added to: a key head serves several value heads.
void backward_inputs(const GatedDeltaBackward& g, const Sizes& n, const Chunk& c, const BackwardMemory& m) {
  const ChunkMemory& f = m.chunk;
  matrix_product(c.rows, n.dk, c.rows, 1, Rows(m.f, n.chunk), Rows(f.k, n.dk), 0, m.fk, n.dk);
  double of_last = f.gamma[c.rows - 1] * dot(m.dstate, f.state, n.dk * n.dv);
  for (int64_t i = 0; i < c.rows; ++i) {
    const double *k = f.k + i * n.dk, *x = m.x + i * n.dk, *fk = m.fk + i * n.dk, *dk_state = m.dk_state + i * n.dk, beta = f.beta[i], gamma = f.gamma[i];
    const double x_k = gamma * dot(x, k, n.dk), by_state = dot(k, dk_state, n.dk);
    g.dbeta.f32()[(c.first + i) * n.value_heads + c.head] = static_cast<float>(dot(m.y + i * n.dv, f.v + i * n.dv, n.dv) + x_k + dot(fk, k, n.dk));
    m.dsums[i] += dot(f.q + i * n.dk, m.dq + i * n.dk, n.dk) - by_state + beta * x_k;
    of_last += by_state;
    for (int64_t d = 0; d < n.dk; ++d) {
      m.scaled_k[i * n.dk + d] = beta * k[d];
      m.dk[i * n.dk + d] = dk_state[d] + beta * (gamma * x[d] + fk[d]);
    }
  }
  m.dsums[c.rows - 1] += of_last;
  matrix_product(c.rows, n.dk, c.rows, 1, Rows(m.e, n.chunk), Rows(f.k, n.dk), 1, m.dq, n.dk);
  matrix_product(c.rows, n.dk, c.rows, 1, transpose(m.e, n.chunk), Rows(f.q, n.dk), 1, m.dk, n.dk);
  matrix_product(c.rows, n.dk, c.rows, 1, transpose(m.f, n.chunk), Rows(m.scaled_k, n.dk), 1, m.dk, n.dk);
  const HeadRows dq(g.dq, c.first, c.head / n.group()), dk(g.dk, c.first, c.head / n.group()), dv(g.dv, c.first, c.head);
  double later = 0;
  for (int64_t i = c.rows; i-- > 0;) {
    g.dlog_decay.f32()[(c.first + i) * n.value_heads + c.head] = static_cast<float>(later += m.dsums[i]);
    for (int64_t d = 0; d < n.dv; ++d) dv[i][d] = static_cast<float>(f.beta[i] * m.y[i * n.dv + d]);
    for (int64_t d = 0; d < n.dk; ++d) dq[i][d] += static_cast<float>(m.dq[i * n.dk + d]);
    for (int64_t d = 0; d < n.dk; ++d) dk[i][d] += static_cast<float>(m.dk[i * n.dk + d]);
  }
}

void backward_head(const GatedDeltaBackward& g, const Sizes& n, const CarriedStates& before, const CarriedStates& dbehind, int64_t document, int64_t head, const BackwardMemory& m) {
  const int64_t begin = g.document_starts.i32()[document], end = g.document_starts.i32()[document + 1], state = n.dk * n.dv, chunks = n.chunks_of(end - begin);
  const auto chunk = [&](int64_t i) { return Chunk{std::min(n.chunk, end - begin - i * n.chunk), begin + i * n.chunk, head}; };
  load_state(before, n, document, head, m.chunk.state);
  for (int64_t i = 0; i < chunks; ++i) {
    std::copy_n(m.chunk.state, state, m.states + i * state);
    prepare(g, n, chunk(i), m.chunk);
    apply_state(n, chunk(i), m.chunk);
    advance_state(n, chunk(i), m.chunk);
  }
  load_state(dbehind, n, document, head, m.dstate);
  for (int64_t i = chunks; i-- > 0;) {
    const Chunk c = chunk(i);
    std::copy_n(m.states + i * state, state, m.chunk.state);
    prepare(g, n, c, m.chunk);
    apply_state(n, c, m.chunk);
    backward_state(g, n, c, m);
    backward_inside(g, n, c, m);
    backward_inputs(g, n, c, m);
    std::copy_n(m.next, state, m.dstate);
  }
}

}  // namespace

void gated_delta_ref(const GatedDelta& g, const CarriedStates& before) {
  const Sizes n(g);
  const size_t each = forward_bytes(n);
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int64_t document = 0; document < n.documents; ++document)
    for (int64_t head = 0; head < n.value_heads; ++head) {
      const int64_t at = static_cast<int64_t>(each) * omp_get_thread_num();
      Workspace workspace(g.workspace.slice(0, at, at + static_cast<int64_t>(each)));
      const ChunkMemory m = take_chunk(workspace, n);
      double* out = workspace.take<double>(n.chunk * n.dv);
      load_state(before, n, document, head, m.state);
      const int64_t end = g.document_starts.i32()[document + 1];
      for (int64_t first = g.document_starts.i32()[document]; first < end; first += n.chunk)
        forward_chunk(g, n, {std::min(n.chunk, end - first), first, head}, m, out);
    }
}

size_t gated_delta_ref_workspace_bytes(const GatedDelta& g) { return static_cast<size_t>(omp_get_max_threads()) * forward_bytes(Sizes(g)); }

void gated_delta_backward_ref(const GatedDeltaBackward& g, const CarriedStates& before, const CarriedStates& dbehind) {
  const Sizes n(g);
  const size_t each = backward_bytes(n);
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int64_t document = 0; document < n.documents; ++document)
    for (int64_t key_head = 0; key_head < n.key_heads; ++key_head) {
      const int64_t at = static_cast<int64_t>(each) * omp_get_thread_num();
      Workspace workspace(g.workspace.slice(0, at, at + static_cast<int64_t>(each)));
      const BackwardMemory m = take_backward(workspace, n);
      const int64_t begin = g.document_starts.i32()[document], end = g.document_starts.i32()[document + 1];
      for (const Tensor& x : {g.dq, g.dk}) {
        const HeadRows rows(x, begin, key_head);
        for (int64_t i = 0; i < end - begin; ++i) std::fill_n(rows[i], n.dk, 0.0f);
      }
      for (int64_t i = 0; i < n.group(); ++i) backward_head(g, n, before, dbehind, document, key_head * n.group() + i, m);
    }
}

size_t gated_delta_backward_ref_workspace_bytes(const GatedDeltaBackward& g) { return static_cast<size_t>(omp_get_max_threads()) * backward_bytes(Sizes(g)); }

void delta_map_ref(const DeltaMap& g) {
  const Sizes n(g.k, g.v, 1, g.chunk);
  const size_t each = map_bytes(n);
#pragma omp parallel for schedule(dynamic)
  for (int64_t head = 0; head < n.value_heads; ++head) {
    const int64_t at = static_cast<int64_t>(each) * omp_get_thread_num();
    Workspace workspace(g.workspace.slice(0, at, at + static_cast<int64_t>(each)));
    const ChunkMemory m = take_chunk(workspace, n);
    double *map = workspace.take<double>(n.dk * n.dk), *read = workspace.take<double>(n.chunk * n.dk);
    std::fill_n(m.state, n.dk * n.dv, 0.0);
    for (int64_t i = 0; i < n.dk * n.dk; ++i) map[i] = i % (n.dk + 1) == 0;
    for (int64_t first = 0; first < n.tokens; first += n.chunk) {
      const Chunk c{std::min(n.chunk, n.tokens - first), first, head};
      prepare_keys(g, n, c, m);
      prepare_values(g, n, c, m);
      apply_state(n, c, m);
      advance_state(n, c, m);
      advance_map(n, c, m, map, read);
    }
    std::copy_n(m.state, n.dk * n.dv, g.state.f32() + head * n.dk * n.dv);
    if (g.map.defined()) std::copy_n(map, n.dk * n.dk, g.map.f32() + head * n.dk * n.dk);
  }
}

size_t delta_map_ref_workspace_bytes(const DeltaMap& g) { return static_cast<size_t>(omp_get_max_threads()) * map_bytes(Sizes(g.k, g.v, 1, g.chunk)); }

void delta_map_backward_ref(const DeltaMapBackward& g) {
  const Sizes n(g.k, g.dout, 1, g.chunk), one = one_chunk(n);
  const size_t each = backward_bytes(one);
#pragma omp parallel for schedule(dynamic)
  for (int64_t head = 0; head < n.value_heads; ++head) {
    const int64_t at = static_cast<int64_t>(each) * omp_get_thread_num();
    Workspace workspace(g.workspace.slice(0, at, at + static_cast<int64_t>(each)));
    const BackwardMemory m = take_backward(workspace, one);
    std::fill_n(m.dstate, n.dk * n.dv, 0.0);
    for (int64_t i = one.chunks_of(n.tokens); i-- > 0;) {
      const Chunk c{std::min(n.chunk, n.tokens - i * n.chunk), i * n.chunk, head};
      prepare_keys(g, n, c, m.chunk);
      prepare_queries(g, n, c, m.chunk);
      backward_state(g, n, c, m);
      std::copy_n(m.next, n.dk * n.dv, m.dstate);
    }
    std::copy_n(m.dstate, n.dk * n.dv, g.dstate.f32() + head * n.dk * n.dv);
  }
}

size_t delta_map_backward_ref_workspace_bytes(const DeltaMapBackward& g) {
  return static_cast<size_t>(omp_get_max_threads()) * backward_bytes(one_chunk(Sizes(g.k, g.dout, 1, g.chunk)));
}

}  // namespace hyscale
