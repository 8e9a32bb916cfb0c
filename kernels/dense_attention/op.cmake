hyscale_op(dense_attention SOURCES dense_attention.cpp dense_attention.cu dense_attention_plain.cu DEPENDS OpenBLAS::OpenBLAS)
