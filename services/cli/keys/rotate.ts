import type { Invocation } from '#services/cli/command.ts'
import { CommandError, EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'
import { secondsOf } from '#services/cli/text/time.ts'
import { GRACE_PERIOD_SECONDS, keyView, rotateKey, rotationError } from '#shared/keys/changes.ts'
import type { ApiKey, KeyStore } from '#shared/keys/keys.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { keyIdOf, noSuchKey } from './key-id.ts'
import { expiryOf } from './permissions.ts'
import { author } from './store.ts'
import { timeText } from './tables.ts'

/** `sluice keys rotate`: creates a key with the same project and permissions. The old key expires after the grace period. */
export async function rotate(store: KeyStore, args: readonly string[], { values, out }: Invocation): Promise<ExitCode> {
  const id = keyIdOf(args)
  const old = (await store.list()).find((key) => key.id === id)
  if (!old) throw noSuchKey(id)
  const expires = expiryOf(values)
  requireRotatable(old, expires !== undefined)
  const gracePeriod = values.text('grace-period')
  const gracePeriodSeconds = gracePeriod === undefined ? GRACE_PERIOD_SECONDS : secondsOf('grace-period', gracePeriod)
  const rotated = await rotateKey(
    store,
    old,
    { expiresAt: expires ?? undefined, gracePeriodSeconds: gracePeriodSeconds },
    author(),
  )
  if (!rotated) throw noSuchKey(id)
  const { key, secret, ending } = rotated
  if (out.isHumanReadable) {
    await out.write(`${secret}\n`)
    out.note(`Created ${key.id}. Copy the secret now; it is not shown again.`)
    out.note(`${id} expires at ${timeText(ending.expires_at ?? 0)}.`)
  } else await out.json({ ...keyView(key), secret, replaces: keyView(ending) })
  return EXIT.ok
}

function requireRotatable(old: ApiKey, hasExpires: boolean): void {
  const reason = rotationError(old, hasExpires)
  if (reason === undefined) return
  if (reason === 'ends') {
    const message = `${old.id} has an expiry (${timeText(old.expires_at ?? 0)}), so the new key needs one too.`
    throw usageError(message, 'Set it with --expires 30d or --expires never.')
  }
  const next = `Create a new key for its project: sluice keys create --project ${projectIdOf(old)}`
  throw new CommandError(EXIT.refused, `${old.id} is ${reason} and cannot be rotated.`, next)
}
