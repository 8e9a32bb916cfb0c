hyscale_op(dense_index_loss SOURCES dense_index_loss.cpp dense_index_loss.cu dense_index_loss_hopper.cu dense_index_loss_plain.cu DEPENDS OpenBLAS::OpenBLAS)
