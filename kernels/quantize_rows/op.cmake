hyscale_op(quantize_rows SOURCES quantize_rows.cpp quantize_rows.cu)
