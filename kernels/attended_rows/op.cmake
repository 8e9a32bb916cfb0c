hyscale_op(attended_rows SOURCES attended_rows.cpp attended_rows.cu)
