"""Which literals of a Perl test are its publisher's SQL."""

from __future__ import annotations

from suites.perl import publisher


def test_literals_are_taken_and_what_perl_would_put_together_is_not() -> None:
    text = r"""
    $node_publisher->safe_psql('postgres', "INSERT INTO t VALUES ('a\n', \$1, \"x\")");
    $node_publisher->safe_psql('postgres',
        q(SELECT f(1), '$no'));
    my $r = $node_publisher->psql('postgres', qq{
        BEGIN; COMMIT;});
    $node_subscriber->safe_psql('postgres', "SELECT 'not here'");
    $node_publisher->safe_psql('postgres', "SELECT $variable");
    $node_publisher->safe_psql('postgres', "SELECT 1" . "; SELECT 2");
    $node_publisher->safe_psql('postgres', $sql);
    $node_publisher->safe_psql('postgres', "ALTER SYSTEM SET synchronous_standby_names TO 'sub'");
    """
    found = publisher(text)
    assert [script.strip() for script in found.scripts] == [
        "INSERT INTO t VALUES ('a\n', $1, \"x\")",
        "SELECT f(1), '$no'",
        "BEGIN; COMMIT;",
    ]
    assert found.left_out == 4
