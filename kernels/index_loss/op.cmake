hyscale_op(index_loss SOURCES index_loss.cpp index_loss_ref.cpp index_loss.cu index_loss_hopper.cu DEPENDS OpenBLAS::OpenBLAS)
