import type { Invocation } from '#services/cli/command.ts'
import { CommandError, EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'
import { secondsOf } from '#services/cli/text/time.ts'
import { type ApiKey, type KeyStore, newKey } from '#shared/keys/keys.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { expiryOf } from './rights.ts'
import { shownKey, stateOf, timeText } from './show.ts'
import { author } from './store.ts'
import { keyIdOf, noSuchKey } from './unknown.ts'

const OVERLAP = '24h'

/** `sluice keys rotate`: a new key of the same project with the same rights; the old one ends after the overlap. */
export async function rotate(store: KeyStore, args: readonly string[], { values, out }: Invocation): Promise<ExitCode> {
  const id = keyIdOf(args)
  const old = (await store.list()).find((key) => key.id === id)
  if (!old) throw noSuchKey(id)
  requireValid(old)
  const expires = expiryOf(values)
  if (old.expires_at !== undefined && expires === undefined) {
    const ends = `${id} ends by itself, ${timeText(old.expires_at)}.`
    throw usageError(ends, 'Say when the new one shall end: --expires 30d, or --expires never.')
  }
  const { name, endpoints, models, scopes, limits } = old
  const rights = { name, endpoints, models, scopes, limits, project: projectIdOf(old) }
  const { key, secret } = newKey({ ...rights, expires_at: expires ?? undefined })
  const endsAt = Math.floor(Date.now() / 1_000) + secondsOf('overlap', values.text('overlap') ?? OVERLAP)
  const ending = await store.rotate(id, key, endsAt, author())
  if (!ending) throw noSuchKey(id)
  if (out.isForPeople) {
    await out.write(`${secret}\n`)
    out.note(
      `This is ${key.id}, and the secret is shown only now. ${id} ends ${timeText(ending.expires_at ?? endsAt)}.`,
    )
  } else await out.json({ ...shownKey(key), secret, replaces: shownKey(ending) })
  return EXIT.ok
}

function requireValid(key: ApiKey): void {
  const state = stateOf(key, Date.now())
  if (state === 'valid') return
  const next = `Make a new one of its project: sluice keys create --project ${projectIdOf(key)}`
  throw new CommandError(EXIT.refused, `${key.id} is ${state}: there is nothing to hand over.`, next)
}
