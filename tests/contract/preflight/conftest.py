from tests.contract.fetch.conftest import cache, hub, model, quick, s3, s3_port

__all__ = ["cache", "hub", "model", "quick", "s3", "s3_port"]
