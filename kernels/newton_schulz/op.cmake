hyscale_op(newton_schulz SOURCES newton_schulz.cpp newton_schulz.cu DEPENDS hyscale_gemm hyscale_grad_norm)
