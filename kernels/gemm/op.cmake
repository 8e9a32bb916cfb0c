hyscale_op(gemm SOURCES gemm.cpp grouped_gemm.cpp gemm.cu grouped_gemm.cu grouped_gemm_hopper.cu grouped_gemm_plain.cu DEPENDS OpenBLAS::OpenBLAS $<TARGET_NAME_IF_EXISTS:CUDA::cublasLt>)
