def known(log_text, kernel_release):
    return None
