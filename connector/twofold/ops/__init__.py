"""Operating a connector: what is shown of it while it runs (metrics, health, the status page, logs), and what `doctor` finds. Looks at servers and changes nothing."""
