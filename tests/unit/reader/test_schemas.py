"""The registry's URL may have a password, and no error shows it."""

from __future__ import annotations

import pytest

from twofold_common.errors import UsageError
from twofold_reader.schemas import schemas_at


@pytest.mark.parametrize(
    "url", ["htps://bob:hunter2@registry:8081", "bob:hunter2@registry:8081", "https://bob:hunter2@"]
)
def test_an_error_of_the_url_does_not_repeat_the_password(url: str) -> None:
    with pytest.raises(UsageError, match="http://host:port") as error:
        schemas_at(url)
    assert "hunter2" not in str(error.value)
