hyscale_op(index_loss SOURCES index_loss.cpp index_loss_ref.cpp index_loss.cu index_loss_few_heads.cu index_loss_hopper.cu index_loss_two_halves.cu DEPENDS OpenBLAS::OpenBLAS)
