import type { WireFormat } from '#services/ingress/reply/errors.ts'

export interface Headed {
  setHeader(name: string, value: string): unknown
}

export interface Left {
  readonly kind: 'requests' | 'tokens'
  readonly limit: number
  readonly remaining: number
  readonly resetMs: number
}

/**
 * Sets the rate-limit headers (docs/internals/protocol.md, Headers). If several limits of one kind apply, then the
 * headers show the one with the least remaining.
 */
export function tell(res: Headed, format: WireFormat, all: readonly Left[]): void {
  for (const kind of ['tokens', 'requests'] as const) {
    const [tightest] = all
      .filter((left) => left.kind === kind)
      .toSorted((a, b) => a.remaining - b.remaining || b.resetMs - a.resetMs)
    if (tightest) tellOne(res, format, tightest)
  }
}

function tellOne(res: Headed, format: WireFormat, { kind, limit, remaining, resetMs }: Left): void {
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
