hyscale_op(block_attention SOURCES block_attention.cpp block_attention_ref.cpp block_attention_plain.cu
  block_attention_forward.cu block_attention_backward.cu DEPENDS OpenBLAS::OpenBLAS)
