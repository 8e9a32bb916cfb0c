hyscale_op(flash_topk SOURCES flash_topk.cpp flash_topk_ref.cpp flash_topk.cu flash_topk_plain.cu flash_topk_finish.cu)
