"""Agents: the only place that meets Pydantic AI."""
