hyscale_op(block_attention SOURCES block_attention.cpp block_attention_ref.cpp block_attention_plain.cu DEPENDS OpenBLAS::OpenBLAS)
