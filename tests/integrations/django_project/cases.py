"""What holds inside a project of Django's; run by Django's own runner, see test_django.py.

Rule: every case runs in the database of the run and leaves it as it was.
"""

import asyncio
import threading
from datetime import UTC, datetime, timedelta

from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from django.test import TestCase, TransactionTestCase, override_settings

from carom import App
from carom.errors import ConfigurationError
from carom.integrations.django import current_app, database, emit, fresh_connections
from carom.integrations.django.models import Outbox
from carom.integrations.django.running import run

elsewhere = App("embedded://", database=database(prefix="else_"), name="elsewhere")
homeless = App("embedded://", name="homeless")


class InATestCase(TestCase):
    """Everything is in a transaction here."""

    databases = frozenset({"default", "other"})

    def test_what_is_emitted_can_be_asserted(self):
        message = emit("order.placed", {"id": 1}, key="ada", headers={"shop": "north"})
        row = Outbox.objects.get()
        self.assertEqual((row.message_id, row.routing_key, row.ordering_key), (message.id, "order.placed", "ada"))
        self.assertEqual(bytes(row.body), b'{"id":1}')
        self.assertIn("north", row.headers)
        self.assertEqual(str(row), f"order.placed {message.id}")
        self.assertIsNone(row.sent_at)

    def test_moments_are_moments(self):
        emit("order.placed", delay="1h")
        row = Outbox.objects.get()
        now = datetime.now(UTC)
        self.assertLess(abs(row.created_at - now), timedelta(minutes=1))
        self.assertLess(abs(row.wait_until - now - timedelta(hours=1)), timedelta(minutes=1))
        self.assertEqual(Outbox.objects.filter(wait_until__gt=now, sent_at__isnull=True).count(), 1)
        self.assertEqual(Outbox.objects.filter(created_at__gt=now + timedelta(minutes=1)).count(), 0)

    def test_a_savepoint_that_is_rolled_back_takes_its_messages_along(self):
        emit("kept")
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            emit("gone")
            raise ZeroDivisionError
        self.assertEqual([row.routing_key for row in Outbox.objects.all()], ["kept"])

    def test_another_database_has_an_outbox_of_its_own(self):
        with transaction.atomic(using="other"):
            emit("there", using="other")
        self.assertEqual(Outbox.objects.count(), 0)
        self.assertEqual(Outbox.objects.using("other").get().routing_key, "there")

    def test_a_database_that_speaks_otherwise_than_the_app_is_refused(self):
        connection.vendor, vendor = "mysql", connection.vendor
        self.addCleanup(setattr, connection, "vendor", vendor)
        with self.assertRaisesMessage(ConfigurationError, "'default' is mysql"):
            emit("order.placed")

    def test_the_app_takes_django_s_connections_too(self):
        current_app().emit_on_sync(connections["default"], "plain")
        self.assertEqual(Outbox.objects.count(), 1)


class OutsideOfATransaction(TransactionTestCase):
    """Nothing is in a transaction here."""

    def test_emitting_is_refused(self):
        with self.assertRaisesMessage(ConfigurationError, "transaction.atomic()"):
            emit("order.placed")
        self.assertEqual(Outbox.objects.count(), 0)

    def test_what_was_committed_stays_and_is_flushed_after_the_test(self):
        self.assertEqual(Outbox.objects.count(), 0)
        with transaction.atomic():
            emit("order.placed")
        self.assertEqual(Outbox.objects.count(), 1)

    def test_the_next_test_begins_with_nothing(self):
        self.test_what_was_committed_stays_and_is_flushed_after_the_test()

    def test_an_app_that_verifies_accepts_the_tables(self):
        app = current_app()

        async def verify():
            await app.store.open("verify")
            await app.store.close()

        asyncio.run(verify())

    def test_a_handler_in_a_thread_leaves_no_connection_behind(self):
        open_ones = []

        @fresh_connections
        def handle(number: int) -> int:
            connection.ensure_connection()
            open_ones.append(connection.connection)
            return Outbox.objects.count() + number

        def work():
            open_ones.append(handle(1))
            open_ones.append(connection.connection)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        self.assertIsNotNone(open_ones[0])
        self.assertEqual(open_ones[1:], [1, None])


class Checks(TestCase):
    """What is wrong with the settings is said by name."""

    databases = frozenset({"default", "other"})

    def found(self, **given):
        return [one.id for one in run_checks(**given)]

    def test_all_is_well(self):
        self.assertEqual(self.found(databases=["default", "other"]), [])

    def test_no_app_is_named(self):
        with override_settings(CAROM=None):
            self.assertEqual(self.found(), ["carom.E001"])

    def test_an_app_is_named_and_made(self):
        with override_settings(CAROM_APP="cases:elsewhere"):
            self.assertEqual(self.found(), ["carom.E001"])

    def test_what_is_named_is_no_app(self):
        for reference in ("cases", "nosuchmodule:app", "cases:Checks", "cases:nothing", 7):
            with self.subTest(reference), override_settings(CAROM=None, CAROM_APP=reference):
                self.assertEqual(self.found(), ["carom.E001"])

    def test_settings_that_nobody_knows(self):
        for given in ({"BROKR": "embedded://"}, {"EXCHANGE": "amq.topic"}, "embedded://"):
            with self.subTest(given), override_settings(CAROM=given):
                self.assertEqual(self.found(), ["carom.E001"])

    def test_an_app_without_a_database(self):
        with override_settings(CAROM=None, CAROM_APP="cases:homeless"):
            self.assertEqual(self.found(), ["carom.E002"])

    def test_an_app_whose_tables_are_elsewhere(self):
        with override_settings(CAROM=None, CAROM_APP="cases:elsewhere"):
            self.assertEqual(self.found(), ["carom.E004"])

    def test_a_database_that_carom_does_not_know(self):
        connection.vendor, vendor = "oracle", connection.vendor
        self.addCleanup(setattr, connection, "vendor", vendor)
        self.assertEqual(self.found(), ["carom.E003"])
        with self.assertRaisesMessage(ConfigurationError, "which is oracle"):
            database()

    def test_tables_that_are_not_there(self):
        with override_settings(CAROM_PREFIX="else_"):
            self.assertEqual(self.found(databases=["default"]), ["carom.W001"])


class Commands(TestCase):
    """What the commands say when they cannot run."""

    def test_nothing_to_run(self):
        with self.assertRaisesMessage(CommandError, "has no listeners"):
            call_command("carom_run")

    def test_an_app_that_cannot_be_had(self):
        with override_settings(CAROM=None), self.assertRaisesMessage(CommandError, "the settings name no app"):
            run(consume=False, relay=True, using=None)

    def test_the_models_are_as_the_migrations_make_them(self):
        call_command("makemigrations", "--check", "--dry-run", verbosity=0)
