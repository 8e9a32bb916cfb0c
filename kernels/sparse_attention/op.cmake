hyscale_op(sparse_attention SOURCES sparse_attention.cpp sparse_attention_ref.cpp sparse_attention_plain.cu
  sparse_attention_forward.cu sparse_attention_backward.cu DEPENDS OpenBLAS::OpenBLAS)
