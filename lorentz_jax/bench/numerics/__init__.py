"""Errors of every public function, measured against 50 digits."""
