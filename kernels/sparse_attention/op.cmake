hyscale_op(sparse_attention SOURCES sparse_attention.cpp sparse_attention_ref.cpp DEPENDS OpenBLAS::OpenBLAS)
