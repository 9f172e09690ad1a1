-- When a request of a row may last have left: a receiver that does not know the row's key is believed only some time after.

-- step: add the time of the last request
ALTER TABLE {table} ADD COLUMN IF NOT EXISTS last_dispatch_at timestamptz;
