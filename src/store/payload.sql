-- One payload in parts, so that the reader holds it once and in one piece, with what its first attempt recorded of it. A
-- payload above the limit yields its size alone.
SELECT body.octets,
       body.kept,
       body.hash,
       substring(body.bytes FROM part.number * $4 + 1 FOR $4) AS part
FROM (
    -- OFFSET 0 keeps each level apart, so that text and hash are made once and not for each part.
    SELECT text.kept,
           text.bytes,
           octet_length(text.bytes) AS octets,
           CASE WHEN octet_length(text.bytes) <= $3 THEN sha256(text.bytes) END AS hash
    FROM (
        SELECT payload_hash AS kept, convert_to(payload::text, 'UTF8') AS bytes
        FROM {table}
        WHERE id = $1 AND claim_token = $2 AND status = 'in_flight'
        OFFSET 0
    ) AS text
    OFFSET 0
) AS body
LEFT JOIN LATERAL generate_series(0, (body.octets - 1) / $4) AS part (number) ON body.octets <= $3
