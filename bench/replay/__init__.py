"""Replay recorded texts under other drafting policies, without the target model."""
