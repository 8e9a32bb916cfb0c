hyscale_op(dense_index_loss SOURCES dense_index_loss.cpp DEPENDS OpenBLAS::OpenBLAS)
