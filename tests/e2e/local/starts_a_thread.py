"""An import after which a fork would be unsafe."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
