-- Calls of a tenant that run now, as their ingresses have said. A statement stamps what it says with the time at which it began,
-- and may have waited for a lock: so a little later than an ingress may say is believed too.
CREATE FUNCTION calls_of(whose text) RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT coalesce(sum((one.value->>'count')::bigint), 0)::bigint
  FROM running_calls, jsonb_each(said) AS one
  WHERE name = 'calls ' || whose
    AND (one.value->>'until_ms')::bigint > now_ms() AND (one.value->>'until_ms')::bigint <= now_ms() + 20000
$$;

-- Durable jobs of a tenant that run now.
CREATE FUNCTION jobs_of(whose text) RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT count(*) FROM jobs WHERE tenant = whose AND state = 'in_progress' AND purge_at_ms IS NULL
$$;

-- The limit of running calls and jobs of a tenant: of a project, or of a key that is a project of its own. NULL: none. What is
-- kept there may have been written by hand: nothing that it holds makes this fail.
CREATE FUNCTION running_limit(whose text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE found_limits text;
BEGIN
  SELECT limits INTO found_limits FROM projects WHERE id = whose;
  IF NOT FOUND THEN
    SELECT limits INTO found_limits FROM api_keys WHERE id = whose AND project IS NULL;
  END IF;
  RETURN CAST(substring(found_limits FROM '"running"\s*:\s*([0-9]{1,16})\s*[,}]') AS bigint);
END $$;

-- Who counts what a tenant runs in order to add to it has this lock until that is committed.
CREATE FUNCTION running_lock(whose text) RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT hashtextextended(current_schema() || ' running ' || whose, 0)
$$;

-- How many more durable jobs of a tenant may run now; NULL: any number. With takes, of several that ask at once one is told,
-- and the others are told 0 until its statement is committed. Each of its queries sees what was committed before it began,
-- unlike those of the statement that calls it, for it is volatile (postgresql.org/docs/current/xfunc-volatility.html).
CREATE FUNCTION running_room(whose text, takes boolean) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE most bigint := running_limit(whose);
BEGIN
  IF most IS NULL THEN
    RETURN NULL;
  END IF;
  IF takes AND NOT pg_try_advisory_xact_lock(running_lock(whose)) THEN
    RETURN 0;
  END IF;
  RETURN greatest(most - calls_of(whose) - jobs_of(whose), 0);
END $$;

-- Durable jobs that run of whoever a count of calls is about, for an ingress that has just said how many calls it runs: none
-- is claimed between the two. Names of other counts have none.
CREATE FUNCTION jobs_beside(place text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF place NOT LIKE 'calls %' THEN
    RETURN 0;
  END IF;
  PERFORM pg_advisory_xact_lock(running_lock(substr(place, 7)));
  RETURN jobs_of(substr(place, 7));
END $$;
