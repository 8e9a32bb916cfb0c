hyscale_op(lm_head_loss SOURCES lm_head_loss.cpp cross_entropy.cu DEPENDS hyscale_gemm hyscale_elementwise)
