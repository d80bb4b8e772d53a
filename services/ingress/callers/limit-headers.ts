import type { WireFormat } from '#services/ingress/body/errors.ts'
import type { RemainingLimit } from '#shared/capacity/rate-limits.ts'

interface HeaderTarget {
  setHeader(name: string, value: string): unknown
}

/**
 * Sets the rate-limit headers (docs/internals/protocol.md, Headers). If several limits of one kind apply, then the headers show the limit
 * with the fewest requests or tokens left.
 */
export function setLimitHeaders(res: HeaderTarget, format: WireFormat, all: readonly RemainingLimit[]): void {
  for (const kind of ['tokens', 'requests'] as const) {
    const [tightest] = all
      .filter((left) => left.kind === kind)
      .toSorted((a, b) => a.remaining - b.remaining || b.resetMs - a.resetMs)
    if (tightest) setLimitHeader(res, format, tightest)
  }
}

function setLimitHeader(
  res: HeaderTarget,
  format: WireFormat,
  { kind, limit, remaining, resetMs }: RemainingLimit,
): void {
  if (format === 'anthropic') {
    res.setHeader(`anthropic-ratelimit-${kind}-limit`, String(limit))
    res.setHeader(`anthropic-ratelimit-${kind}-remaining`, String(remaining))
    res.setHeader(`anthropic-ratelimit-${kind}-reset`, new Date(Date.now() + resetMs).toISOString())
  } else {
    res.setHeader(`x-ratelimit-limit-${kind}`, String(limit))
    res.setHeader(`x-ratelimit-remaining-${kind}`, String(remaining))
    res.setHeader(`x-ratelimit-reset-${kind}`, resetMs < 1_000 ? `${resetMs}ms` : `${Math.ceil(resetMs / 1_000)}s`)
  }
}
