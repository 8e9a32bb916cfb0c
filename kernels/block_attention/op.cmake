hyscale_op(block_attention SOURCES block_attention.cpp block_attention_ref.cpp DEPENDS OpenBLAS::OpenBLAS)
