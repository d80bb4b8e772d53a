import type { Invocation } from '#services/cli/command.ts'
import { CommandError, EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'
import { secondsOf } from '#services/cli/text/time.ts'
import { OVERLAP_SECONDS, rotateKey, shownKey, whyNotRotated } from '#shared/keys/changes.ts'
import type { ApiKey, KeyStore } from '#shared/keys/keys.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { expiryOf } from './rights.ts'
import { timeText } from './show.ts'
import { author } from './store.ts'
import { keyIdOf, noSuchKey } from './unknown.ts'

/** `sluice keys rotate`: a new key of the same project with the same rights; the old one ends after the overlap. */
export async function rotate(store: KeyStore, args: readonly string[], { values, out }: Invocation): Promise<ExitCode> {
  const id = keyIdOf(args)
  const old = (await store.list()).find((key) => key.id === id)
  if (!old) throw noSuchKey(id)
  const expires = expiryOf(values)
  requireRotatable(old, expires !== undefined)
  const overlap = values.text('overlap')
  const overlapSeconds = overlap === undefined ? OVERLAP_SECONDS : secondsOf('overlap', overlap)
  const rotated = await rotateKey(store, old, { expiresAt: expires ?? undefined, overlapSeconds }, author())
  if (!rotated) throw noSuchKey(id)
  const { key, secret, ending } = rotated
  if (out.isForPeople) {
    await out.write(`${secret}\n`)
    out.note(`This is ${key.id}, and the secret is shown only now. ${id} ends ${timeText(ending.expires_at ?? 0)}.`)
  } else await out.json({ ...shownKey(key), secret, replaces: shownKey(ending) })
  return EXIT.ok
}

function requireRotatable(old: ApiKey, isEndSaid: boolean): void {
  const why = whyNotRotated(old, isEndSaid)
  if (why === undefined) return
  if (why === 'ends') {
    const ends = `${old.id} ends by itself, ${timeText(old.expires_at ?? 0)}.`
    throw usageError(ends, 'Say when the new one shall end: --expires 30d, or --expires never.')
  }
  const next = `Make a new one of its project: sluice keys create --project ${projectIdOf(old)}`
  throw new CommandError(EXIT.refused, `${old.id} is ${why}: there is nothing to hand over.`, next)
}
