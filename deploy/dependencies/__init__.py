"""What the agent is shipped with: the locked dependencies, their licences, the SBOM."""
