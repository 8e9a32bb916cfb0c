// The rows that a query of DeepSeek-V4 attends to, as one selection for sparse attention. Rows are [entries | tokens]:
// compressed entries come first, token t is row first_token_row + t.
//   entries: those chosen for the query, or all that it sees, or none;   tokens: the last `window` of its document, itself included
// A query's entries come first, so that its first slots are those of the chosen entries.
#pragma once
#include "core/tensor.h"
#include "kernels/flash_topk/selection.h"

namespace hyscale {

struct AttendedRows {
  Selection chosen;                // of entries; or absent
  Tensor entry_begin, entry_end;   // i32 [T]  the entries that a query sees; absent where `chosen` is there or there are none
  Tensor key_begin, key_end;       // i32 [T]  the tokens that a query sees
  int64_t window = 1;              // at least 1
  int64_t first_token_row = 0;
  Selection rows;                  // [T, width], width at least the most entries of a query + window; overwritten
  Stream stream;
};
void attended_rows(const AttendedRows&);

}  // namespace hyscale
