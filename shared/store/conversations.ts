import type { ConversationItem } from '#schemas/responses/conversation.ts'
import { newId } from '#shared/lib/id.ts'

export interface StoredConversation {
  readonly id: string
  readonly tenant: string
  readonly metadata: Readonly<Record<string, string>>
  readonly items: readonly ConversationItem[]
  readonly job_id: string | null
  /** Input of the response in progress, appended together with its output. */
  readonly pending: readonly ConversationItem[]
  readonly version: number
  readonly created_at_ms: number
}

export type ConversationChange = Partial<Pick<StoredConversation, 'metadata' | 'items' | 'job_id' | 'pending'>>

/** Conversations, which responses continue. Each is one row, so every change is atomic. */
export interface ConversationStore {
  /** Stores a new conversation if the project has less than `most`. */
  create(
    conversation: Pick<StoredConversation, 'id' | 'tenant' | 'metadata' | 'items'>,
    bounds: { readonly keepMs: number; readonly most: number },
  ): Promise<boolean>
  find(tenant: string, id: string): Promise<StoredConversation | undefined>
  /**
   * Replaces fields if the version is unchanged, and extends retention to `keepMs` from now. @returns False if another call has changed the
   * conversation
   */
  change(read: StoredConversation, change: ConversationChange, keepMs: number): Promise<boolean>
  delete(tenant: string, id: string): Promise<boolean>
  purge(limit: number): Promise<number>
}

export interface HasConversations {
  readonly conversations: ConversationStore
}

export function newConversationId(): string {
  return newId('conv_', 32)
}

export function isConversationId(text: string): boolean {
  return /^conv_[0-9A-Za-z]{8,64}$/.test(text)
}
