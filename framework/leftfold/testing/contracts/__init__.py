"""Contract tests for adapters: subclass one in your tests, give it your adapter as a fixture, and run pytest.

```python
class TestMyStore(ViewStoreContract):
    @pytest.fixture
    def store(self) -> Iterator[ViewStore]:
        yield MyStore()
```
"""

from leftfold.testing.contracts.view_store import ViewStoreContract

__all__ = ["ViewStoreContract"]
