import { z } from 'zod'
import type { Answer } from '#services/cli/client/http.ts'
import type { JobsApi } from '#services/cli/client/jobs-api.ts'
import { CommandError, EXIT } from '#services/cli/failure.ts'
import { type Check, type Finding, failed, ok, reasonOf, warned } from '#shared/doctor/check.ts'

const Ready = z.looseObject({
  status: z.string(),
  problems: z.array(z.string()).optional(),
  preparing: z.array(z.string()).optional(),
})

/** What the check was told. */
export interface ServiceOptions {
  /** The address was given, so the service should be there; otherwise it may not have been started yet. */
  readonly isTold: boolean
  readonly hasKey: boolean
}

/** The service at `--url`: there, ready, and the key valid. */
export function serviceCheck(api: JobsApi, { isTold, hasKey }: ServiceOptions): Check {
  const { url } = api.http
  return {
    name: 'service',
    fix: 'Check --url or SLUICE_URL: something else answers there.',
    async run() {
      const answer = await api.http.send('/readyz').catch((error: unknown) => absence(error, url, isTold))
      if ('check' in answer) return [answer]
      return [await readiness(answer, url), await keyFinding(api, hasKey)]
    },
  }
}

async function readiness(answer: Answer, url: string): Promise<Finding> {
  const ready = Ready.parse(await answer.body.json())
  const preparing = ready.preparing?.length ? `; still being prepared: ${ready.preparing.join(', ')}` : ''
  if (answer.statusCode === 200) return ok('service', `ready at ${url}${preparing}`)
  const why = ready.problems?.join(' ') ?? ready.status
  return warned('service', `${url} is not ready: ${why}`, 'Look at its log, and at what is wrong above.')
}

function absence(error: unknown, url: string, isTold: boolean): Finding {
  if (!(error instanceof CommandError)) throw error
  const message = `${url} cannot be reached: ${reasonOf(error.cause)}`
  if (isTold) return failed('service', message, 'Start it, or mend --url or SLUICE_URL.')
  return warned('service', message, 'Start it with npm start, or say where it is with --url or SLUICE_URL.')
}

async function keyFinding(api: JobsApi, hasKey: boolean): Promise<Finding> {
  if (!hasKey) return warned('key', 'no key is given', 'Set SLUICE_API_KEY or --key; make one: sluice keys create')
  try {
    const models = await api.models()
    return ok('key', `valid, for ${models.length} ${models.length === 1 ? 'model' : 'models'}`)
  } catch (error) {
    if (!(error instanceof CommandError) || error.exit !== EXIT.refused) throw error
    return failed('key', error.message, error.next ?? 'Make another: sluice keys create')
  }
}
