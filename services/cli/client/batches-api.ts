import { openAsBlob } from 'node:fs'
import { basename } from 'node:path'
import { FormData } from 'undici'
import { z } from 'zod'
import { usageError } from '#services/cli/failure.ts'
import { type Answer, type HttpClient, refusalOf } from './http.ts'

/** A batch, as far as the commands show it. */
export const BatchView = z.looseObject({
  id: z.string(),
  status: z.string(),
  endpoint: z.string(),
  created_at: z.number(),
  completed_at: z.number().nullish(),
  output_file_id: z.string().nullish(),
  error_file_id: z.string().nullish(),
  errors: z
    .looseObject({ data: z.array(z.looseObject({ message: z.string(), line: z.number().nullish() })) })
    .nullish(),
  request_counts: z.looseObject({ total: z.number(), completed: z.number(), failed: z.number() }),
})
export type BatchView = z.infer<typeof BatchView>

/** The API of files and batches (docs/batches.md), as the commands need it. @throws CommandError for every refusal */
export class BatchesApi {
  readonly #http: HttpClient

  constructor(http: HttpClient) {
    this.#http = http
  }

  /** Uploads a file of requests, which is read as it is sent. @returns Its id */
  async upload(path: string): Promise<string> {
    const blob = await openAsBlob(path).catch((error: Error) => {
      throw usageError(`${path}: ${error.message}`)
    })
    const form = new FormData()
    form.append('purpose', 'batch')
    form.append('file', blob, basename(path))
    return (await this.#http.json(z.looseObject({ id: z.string() }), '/v1/files', { method: 'POST', form })).id
  }

  /** Makes a batch. @param request The body of `POST /v1/batches`. */
  async create(request: object): Promise<BatchView> {
    return await this.#http.json(BatchView, '/v1/batches', { method: 'POST', body: request })
  }

  async get(id: string): Promise<BatchView> {
    return await this.#http.json(BatchView, `/v1/batches/${encodeURIComponent(id)}`)
  }

  /** The bytes of a file. The caller reads them. */
  async content(file: string): Promise<Answer> {
    return await this.#read(`/v1/files/${encodeURIComponent(file)}/content`)
  }

  /** The results of a batch of messages. The caller reads them. */
  async messagesResults(id: string): Promise<Answer> {
    return await this.#read(`/v1/messages/batches/${encodeURIComponent(id)}/results`)
  }

  async #read(path: string): Promise<Answer> {
    const answer = await this.#http.send(path, { headers: { accept: '*/*' } })
    if (answer.statusCode >= 300) throw await refusalOf(answer)
    return answer
  }
}
