import { GenerateRequest } from '#schemas/generate.ts'
import { tolerant } from '#shared/tolerant.ts'

/** Turns that are checked before other work has its turn: a few milliseconds. */
const PIECE_TURNS = 1_000

const Request = tolerant(GenerateRequest)

/**
 * Checks the body of a job, a long conversation in pieces. To be run by `inTurns`.
 *
 * @throws ZodError when it is not what an ingress sends
 */
export function* readRequest(body: unknown): Generator<undefined, GenerateRequest> {
  const turns = (body as { turns?: unknown } | null)?.turns
  if (!Array.isArray(turns) || turns.length <= PIECE_TURNS) return Request.parse(body)
  const request = Request.parse({ ...(body as object), turns: turns.slice(0, PIECE_TURNS) })
  for (let at = PIECE_TURNS; at < turns.length; at += PIECE_TURNS) {
    yield
    for (const turn of Request.shape.turns.parse(turns.slice(at, at + PIECE_TURNS))) request.turns.push(turn)
  }
  return request
}
