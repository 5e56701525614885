"""Waits until a MARLJob ends; the exit code says how. For the pod of `helm test`.

Takes namespace, name and seconds. Plain Python with the pod's own token: nothing of ours is needed.
"""

import http.client
import json
import ssl
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
API = "https://kubernetes.default.svc/apis/flexmarl.io/v1alpha1"


def read(url: str) -> dict[str, Any]:
    """The job's status; empty while the API server has none or does not answer."""
    token = (ACCOUNT / "token").read_text()
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    trust = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    try:
        with urllib.request.urlopen(request, timeout=10, context=trust) as answer:
            found: dict[str, Any] = json.load(answer)
    except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
        print(f"no answer yet: {error}", flush=True)
        return {}
    return dict(found.get("status") or {})


def main(namespace: str, name: str, seconds: str) -> int:
    url = f"{API}/namespaces/{namespace}/marljobs/{name}"
    until, last = time.monotonic() + float(seconds), ""
    status: dict[str, Any] = {}
    while time.monotonic() < until:
        status = read(url) or status
        phase = str(status.get("phase", "Pending"))
        why = str(status.get("reason", ""))
        if (now := f"{phase}, {why}" if why else phase) != last:
            print(f"MARLJob {namespace}/{name}: {now}: {status.get('message', '')}", flush=True)
            last = now
        if phase == "Complete":
            return 0
        if phase == "Failed":
            break
        time.sleep(1)
    print(json.dumps(status, indent=2))
    print(f"not Complete; see kubectl -n {namespace} describe marljob {name}")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
