hyscale_op(index_loss SOURCES index_loss.cpp index_loss_ref.cpp DEPENDS OpenBLAS::OpenBLAS)
