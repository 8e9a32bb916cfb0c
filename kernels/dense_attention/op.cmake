hyscale_op(dense_attention SOURCES dense_attention.cpp DEPENDS OpenBLAS::OpenBLAS)
